"""The receivers of alerts; each class satisfies ``alerting.alerter.Sink``."""
