"""Every jail that this machine may have, the strongest first."""

import logging
from collections.abc import Sequence

from gagar.errors import MachineError
from gagar.sandbox.jail import bubblewrap_jails
from gagar.sandbox.landlock import LandlockJail
from gagar.sandbox.warm_server import Jail

logger = logging.getLogger(__name__)


def every_jail() -> Sequence[Jail]:
    """Those of bubblewrap, if there is a program, then Landlock's."""
    try:
        stronger: Sequence[Jail] = bubblewrap_jails()
    except MachineError as error:
        logger.warning("sandbox kind passed over kind=bubblewrap error=%s", error)
        stronger = ()
    return [*stronger, LandlockJail()]
