"""What every script does before its other imports, which take seconds."""

import signal
import sys
from pathlib import Path


def prepare() -> None:
    """Lets Ctrl-C end the process, and puts the folder of scripts/ first on the path.

    Ctrl-C would end an import with a traceback. The folder has the package and the
    configs that belong to the scripts; an installed package may be of another place.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.path.insert(0, str(Path(__file__).parents[1]))
