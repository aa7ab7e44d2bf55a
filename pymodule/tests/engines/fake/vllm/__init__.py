"""What tms._vllm uses of vLLM 0.26.0, under its names and with its signatures, over fake torch.

engines/test_vllm_plugin.py compares it with the installed vLLM.
"""

__version__ = "0.26.0"
