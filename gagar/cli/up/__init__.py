"""`gagar up` and `gagar demo`: the whole pipeline as processes of this machine."""
