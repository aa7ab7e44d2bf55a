"""What tms._sglang uses of sglang 0.5.17, under its names and with its signatures, over fake torch.

engines/test_sglang_plugin.py compares it with the installed sglang.
"""

__version__ = "0.5.17"
