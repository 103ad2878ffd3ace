"""The only place that touches compiled code; it imports nothing else of Offstage."""
