"""Entry point: `python3 supervisor.pyz COMMAND...`."""

import os
import sys

if os.path.isdir(os.path.dirname(__file__)):  # on a local cluster this file is in a folder, not in the archive
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from xpk_shared.supervisor.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
