"""Groups, from admission to advantages: pure functions and folds."""
