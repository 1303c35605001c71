"""`python -m headcount`: the command line."""

import sys

from headcount.app.cli._main import main

sys.exit(main())
