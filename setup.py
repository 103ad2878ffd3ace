"""What pyproject.toml cannot declare: the C extension, and that one wheel fits every Python."""

from setuptools import setup

setup(
    cffi_modules=["bindings/build_firmware.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
