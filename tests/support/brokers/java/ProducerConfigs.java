import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What Java's ProducerConfig says. Without arguments: a line "name TAB default" for each option.
 * With a file of cases, "name=value TAB name=value ..." a line: for each case a line, "refused", or
 * what the producer would then use.
 */
public class ProducerConfigs {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            var keys = new TreeMap<>(ProducerConfig.configDef().configKeys());
            for (ConfigDef.ConfigKey key : keys.values())
                System.out.println(key.name + "\t" + key.defaultValue);
            return;
        }
        Method deliveryTimeout = KafkaProducer.class.getDeclaredMethod(
            "configureDeliveryTimeout", ProducerConfig.class, Logger.class);
        deliveryTimeout.setAccessible(true);
        Logger log = LoggerFactory.getLogger(ProducerConfigs.class);
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            try {
                ProducerConfig config = new ProducerConfig(options(line));
                System.out.println(config.getBoolean("enable.idempotence")
                    + "\t" + config.getString("acks")
                    + "\t" + config.getInt("retries")
                    + "\t" + config.getString("transactional.id")
                    + "\t" + config.getInt("transaction.timeout.ms")
                    + "\t" + deliveryTimeout.invoke(null, config, log)
                    + "\t" + config.getLong("reconnect.backoff.max.ms")
                    + "\t" + String.join(",", config.getList("bootstrap.servers")));
            } catch (Exception refused) {
                System.out.println("refused");
            }
        }
    }

    private static Map<String, Object> options(String line) {
        Map<String, Object> options = new HashMap<>();
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        options.put("key.serializer", bytes);
        options.put("value.serializer", bytes);
        options.put("bootstrap.servers", "h:1");
        for (String option : line.split("\t")) {
            if (option.isEmpty())
                continue;
            int equals = option.indexOf('=');
            options.put(option.substring(0, equals), option.substring(equals + 1));
        }
        return options;
    }
}
