"""The report as one HTML file that needs no network."""

from .page import page as page
