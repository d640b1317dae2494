import org.apache.kafka.common.security.JaasContext;
import org.apache.kafka.common.config.types.Password;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;

import javax.security.auth.login.AppConfigurationEntry;

import static java.nio.charset.StandardCharsets.UTF_16BE;

/**
 * Parses texts as sasl.jaas.config. A line of the file is a text in hex. For each it prints
 * module, names and values in hex, or that the text is refused.
 */
public class ParseJaas {
    static final HexFormat HEX = HexFormat.of();

    static String hex(String text) {
        return HEX.formatHex(text.getBytes(UTF_16BE)) + ".";
    }

    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            Password text = new Password(new String(HEX.parseHex(line), UTF_16BE));
            try {
                AppConfigurationEntry entry = JaasContext.loadClientContext(Map.of("sasl.jaas.config", text))
                    .configurationEntries().get(0);
                Map<String, String> options = new TreeMap<>();
                entry.getOptions().forEach((name, value) -> {
                    if (name != null)
                        options.put(name, (String) value);
                });
                StringBuilder told = new StringBuilder(hex(entry.getLoginModuleName()));
                options.forEach((name, value) -> told.append(" " + hex(name) + " " + hex(value)));
                System.out.println(told);
            } catch (IllegalArgumentException e) {
                System.out.println("refused");
            }
        }
    }
}
