"""``python -m farmd.cli``: farmctl from a checkout that is not installed."""

from farmd.cli.main import main

main()
