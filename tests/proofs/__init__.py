"""What a doubter should be able to run: bounded in the normal suite, in full with ``SAGASPAN_PROOFS=full``."""

import os

FULL = os.environ.get("SAGASPAN_PROOFS") == "full"
