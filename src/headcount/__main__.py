"""`python -m headcount`: the command line."""

import sys

from headcount.cli import main

sys.exit(main())
