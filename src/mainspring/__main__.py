"""``python -m mainspring``."""

import sys

from mainspring.core.__main__ import main

sys.exit(main())
