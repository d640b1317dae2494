import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.internals.SenderMetricsRegistry;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.MetricNameTemplate;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Prints every metric of Kafka's producer: group, name, tags, description. */
public class DumpMetrics {
    public static void main(String[] arguments) throws Exception {
        TreeSet<String> lines = new TreeSet<>();
        for (MetricNameTemplate t : new SenderMetricsRegistry(new Metrics()).allTemplates())
            if (t.tags().contains("topic"))
                lines.add(String.join("|", t.group(), t.name(), "client-id,topic", t.description()));
        try (ServerSocket broker = new ServerSocket(0, 5, InetAddress.getByName("127.0.0.1"));
             KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                 Map.of("bootstrap.servers", "127.0.0.1:" + broker.getLocalPort()),
                 new ByteArraySerializer(), new ByteArraySerializer())) {
            broker.accept();
            // The last metric that a connection registers.
            while (producer.metrics().keySet().stream().noneMatch(
                    n -> n.name().equals("request-latency-max") && n.tags().containsKey("node-id")))
                Thread.sleep(10);
            for (MetricName n : producer.metrics().keySet())
                lines.add(String.join("|", n.group(), n.name(),
                    String.join(",", new TreeSet<>(n.tags().keySet())), n.description()));
            lines.forEach(System.out::println);
            // Closing the producer would wait half a minute for the broker that never answers.
            System.exit(0);
        }
    }
}
