"""The only code that touches compiled code; it imports nothing else of Offstage."""
