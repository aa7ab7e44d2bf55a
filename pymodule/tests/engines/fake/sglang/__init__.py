"""What tms._sglang uses of sglang 0.5.17, under its names and with its signatures, over fake torch.

engines/test_sglang_plugin.py compares it with the installed sglang. FAKE_SGLANG=0.5.23 makes it as
that version is.
"""

import os

__version__ = os.environ.get("FAKE_SGLANG", "0.5.17")
