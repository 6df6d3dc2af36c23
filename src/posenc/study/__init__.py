"""The length study: train each encoding short, test it long, report what was measured."""
