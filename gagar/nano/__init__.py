"""The nano set: packaged tasks, the recipe of its policy, demonstrations."""
