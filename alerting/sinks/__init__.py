"""Places that alerts go to; each satisfies ``alerting.alerter.Sink``."""
