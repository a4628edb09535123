"""The code agent: messages in, actions in a sandbox, a patch out."""
