import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;

/** The names of Java's consumer options that are not the producer's too, a line each. */
public class ConsumerOptions {
    public static void main(String[] arguments) {
        TreeSet<String> names = new TreeSet<>(ConsumerConfig.configNames());
        names.removeAll(ProducerConfig.configNames());
        names.forEach(System.out::println);
    }
}
