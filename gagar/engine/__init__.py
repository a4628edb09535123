"""What samples tokens from the policy."""
