"""What keeps workspaces apart inside of a sandbox: one module for each kind of walls. Standard library only."""
