"""Rows sent one by one (`KafkaProducer.send`), on top of the columnar path."""
