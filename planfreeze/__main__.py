"""Run the command line: ``python -m planfreeze``."""

from planfreeze.cli import main

main()
