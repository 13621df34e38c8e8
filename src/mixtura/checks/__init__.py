"""All checks of user input and their messages. Callers use `checks.rank(...)`, whichever file defines it."""

from __future__ import annotations

from mixtura.checks.arguments import *  # noqa: F403
from mixtura.checks.fitted import *  # noqa: F403
from mixtura.checks.labels import *  # noqa: F403
from mixtura.checks.samples import *  # noqa: F403
