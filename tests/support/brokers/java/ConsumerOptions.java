import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/**
 * The names of Java's consumer options that are not the producer's too, a line each. With the
 * argument "all": a line "name TAB default" for each of the consumer's options.
 */
public class ConsumerOptions {
    public static void main(String[] arguments) {
        if (arguments.length == 1) {
            var keys = new TreeMap<>(ConsumerConfig.configDef().configKeys());
            for (ConfigDef.ConfigKey key : keys.values())
                System.out.println(key.name + "\t" + key.defaultValue);
            return;
        }
        TreeSet<String> names = new TreeSet<>(ConsumerConfig.configNames());
        names.removeAll(ProducerConfig.configNames());
        names.forEach(System.out::println);
    }
}
