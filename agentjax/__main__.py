"""`python -m agentjax` is `agentjax`."""

import sys

from agentjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
