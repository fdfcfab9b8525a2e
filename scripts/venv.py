"""Make a virtual environment and install one requirements file: venv.py FOLDER FILE.

Runs on the Python that the machine has, before anything is installed, so it uses nothing else.
"""

import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)


def main(folder: str, requirements: str) -> None:
    if sys.version_info < OLDEST:
        version = ".".join(map(str, OLDEST))
        sys.exit(
            f"Python {version} or newer is needed; this is {sys.version.split()[0]}. "
            "Another one can be named: make run PYTHON=python3.12"
        )
    python = Path(folder) / "bin" / "python"
    if not python.exists():
        print("making a virtual environment")
        made = subprocess.run([sys.executable, "-m", "venv", folder], check=False)
        if made.returncode:
            sys.exit(
                "Python's venv module does not work here; on Debian: apt-get install python3-venv"
            )
    print(f"installing {requirements} (a minute or two, once)", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    sys.exit(subprocess.run([*pip, "-r", requirements], check=False).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
