"""The real thing: a Collector, Jaeger and Prometheus on the loopback, with the configuration that is shipped.

``python -m tests.services.programs`` gets them; ``pytest -n 0 tests/services`` starts them.
What Grafana would say of the dashboards needs no server: ``python -m tests.services.lint``.
"""
