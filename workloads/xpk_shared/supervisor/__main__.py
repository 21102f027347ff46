"""Entry point: `python3 supervisor.pyz COMMAND...`."""

import sys

from xpk_shared.supervisor.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
