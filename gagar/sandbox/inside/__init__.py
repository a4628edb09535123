"""What runs inside the sandbox: imported by the warm server there, never by a stage. Standard library, pytest and
pyflakes only."""
