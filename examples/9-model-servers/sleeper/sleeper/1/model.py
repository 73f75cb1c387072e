"""A model for Triton's Python backend that sleeps: a server under load without a GPU."""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """Answers what it was asked, 40 ms later."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch of requests."""
        time.sleep(0.04)
        asked = (triton.get_input_tensor_by_name(each, "X").as_numpy() for each in requests)
        return [triton.InferenceResponse([triton.Tensor("Y", np.array(each, np.float32))]) for each in asked]
