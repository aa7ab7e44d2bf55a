"""What tms._vllm uses of vLLM, under its names and with its signatures, over fake torch.

engines/test_vllm_plugin.py compares it with the installed vLLM. FAKE_VLLM=0.33.0 adds what is new
there.
"""

import os

__version__ = os.environ.get("FAKE_VLLM", "0.26.0")
