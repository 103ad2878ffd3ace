"""What pyproject.toml cannot declare: the extension."""

from setuptools import setup

setup(cffi_modules=["build_extension.py:builder"])
