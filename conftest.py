"""The environment every test and every notebook kernel started by pytest runs in.

It is set here, before anything imports numpy or torch, so that plain ``pytest`` is enough.
"""

import os

os.environ["PYTHONHASHSEED"] = "0"  # for the kernels; this process has hashed its strings already
os.environ["TQDM_DISABLE"] = "1"  # progress bars would land in compared outputs
os.environ.setdefault("OMP_NUM_THREADS", "1")  # `make test-matrix` sets 2 as well
