"""What pyproject.toml cannot declare: the C extensions, and that one wheel fits every Python."""

from setuptools import setup

setup(
    cffi_modules=[
        "bindings/build_extensions.py:firmware",
        "bindings/build_extensions.py:analysis",
        "bindings/build_extensions.py:chip",
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
