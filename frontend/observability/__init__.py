"""What is shown of requests beside metrics: settings, logged fields and traces."""
