from __future__ import annotations

import os


class Platform:
    device_name = os.environ.get("FAKE_PLATFORM", "cuda")

    def is_cuda(self) -> bool:
        return self.device_name == "cuda"


current_platform = Platform()
