"""`python -m headcount`: the command line."""

import sys

from headcount.app.main import main

sys.exit(main())
