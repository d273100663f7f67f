"""Prints what the audits found, also where several processes ran them."""

from typing import Any

FINDING = "audit"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    findings = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == FINDING
    ]
    if findings:
        terminalreporter.section("audit")
        for finding in sorted(set(findings)):
            terminalreporter.write_line(finding)
