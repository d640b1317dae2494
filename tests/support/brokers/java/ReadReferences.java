import org.apache.kafka.common.config.ConfigData;
import org.apache.kafka.common.config.ConfigTransformer;
import org.apache.kafka.common.config.provider.ConfigProvider;

import java.io.StringReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;

import static java.nio.charset.StandardCharsets.UTF_16BE;

/**
 * Reads texts, one a line in hex, as properties or, with a second argument, as values with references;
 * the providers env and file give <path|key>. Prints names and values, or the value, in hex.
 */
public class ReadReferences {
    static final HexFormat HEX = HexFormat.of();

    static String hex(String text) {
        StringBuilder told = new StringBuilder();
        text.chars().forEach(unit -> told.append(String.format("%04x", unit)));
        return told + ".";
    }

    static class Telling implements ConfigProvider {
        public ConfigData get(String path) { throw new UnsupportedOperationException(); }
        public ConfigData get(String path, Set<String> keys) {
            Map<String, String> data = new HashMap<>();
            for (String key : keys)
                data.put(key, "<" + path + "|" + key + ">");
            return new ConfigData(data);
        }
        public void configure(Map<String, ?> configs) {}
        public void close() {}
    }

    static String properties(String text) throws Exception {
        Properties found = new Properties();
        try {
            found.load(new StringReader(text));
        } catch (IllegalArgumentException e) {
            return "refused";
        }
        found.remove("");
        StringBuilder told = new StringBuilder("found");
        new TreeMap<>(found).forEach((name, value) ->
            told.append(" " + hex((String) name) + " " + hex((String) value)));
        return told.toString();
    }

    public static void main(String[] args) throws Exception {
        ConfigTransformer transformer =
            new ConfigTransformer(Map.of("env", new Telling(), "file", new Telling()));
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String text = new String(HEX.parseHex(line), UTF_16BE);
            System.out.println(args.length == 1 ? properties(text)
                : hex(transformer.transform(Map.of("a", text)).data().get("a")));
        }
    }
}
