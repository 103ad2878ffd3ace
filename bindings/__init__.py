"""The only package that touches compiled code; it imports nothing else of Offstage."""
