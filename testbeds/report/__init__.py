"""Reports of an experiment: summary.json, a self-contained HTML page, a table for the terminal."""

from offstage.testbeds.report.page.files import SUMMARY_NAME, read_summary, write_summary
from offstage.testbeds.report.run.baselines import baselines_table
from offstage.testbeds.report.run.definitions import DEFINITIONS, as_text
from offstage.testbeds.report.run.page import write_report
from offstage.testbeds.report.run.sentence import in_words, sentence
from offstage.testbeds.report.run.table import console_table

__all__ = [
    "DEFINITIONS",
    "SUMMARY_NAME",
    "as_text",
    "baselines_table",
    "console_table",
    "in_words",
    "read_summary",
    "sentence",
    "write_report",
    "write_summary",
]
