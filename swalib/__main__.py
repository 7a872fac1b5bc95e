"""`python -m swalib` is `swa`."""

from swalib.cli import app

app()
