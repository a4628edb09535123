"""Rules of the stage runtime, broken one at a time, and the tests that notice."""
