"""Makers of what a report shows, see tests/report_example.py."""

import pytest


@pytest.fixture(scope="session")
def analysis_of(report_example):
    return report_example.make_analysis


@pytest.fixture(scope="session")
def card_of(report_example):
    return report_example.make_card


@pytest.fixture(scope="session")
def page_of(report_example):
    return report_example.make_page
