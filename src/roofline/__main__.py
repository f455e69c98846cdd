"""`python -m roofline` is `roofline`."""

from roofline.cli import main

main()
